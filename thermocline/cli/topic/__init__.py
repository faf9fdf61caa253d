"""`thermocline topic`: topics are made, changed, trimmed and deleted through the stock admin client."""
