"""Programs: thin mains over the library, one per file."""
