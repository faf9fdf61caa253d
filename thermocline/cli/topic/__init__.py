"""`thermocline topic`: create, change, trim and delete topics through the stock admin client."""
