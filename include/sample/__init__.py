"""Sample traffic and its independent truth. The product imports nothing from here."""
