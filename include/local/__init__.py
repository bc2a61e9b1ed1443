"""Set-up, servers and demo on one machine. The product imports nothing of it."""
