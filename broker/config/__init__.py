"""Every config: its name, meaning and limits, and how a broker's and a topic's values come about. Pure."""
