"""Topics, configs, records and log directories, as admin clients ask for them."""
