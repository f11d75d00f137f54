"""Plans what a query reads, from the manifest's columns: which objects, and how they are split into tasks."""
