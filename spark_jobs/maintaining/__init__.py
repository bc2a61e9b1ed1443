"""The care of the tables: what is still needed of their past, raw rows that are given up for their age, files and logs."""
