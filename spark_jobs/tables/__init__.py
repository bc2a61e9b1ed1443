"""Delta tables: their schemas, the one function that commits to them, the ledger, and the lock of local warehouses."""
