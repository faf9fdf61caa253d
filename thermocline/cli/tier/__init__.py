"""`thermocline tier`: how far logs have sunk, what keeps them from it, and when data leaves."""
