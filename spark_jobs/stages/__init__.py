"""The work of the tasks land, pair, publish and report on the tables and topics."""
