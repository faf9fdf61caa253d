"""Topics, configs, records and log directories, for admin clients."""
