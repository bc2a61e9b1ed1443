"""The care of the tables: what is still needed of their past, rows that are given up for their age and archived before, files and logs."""
