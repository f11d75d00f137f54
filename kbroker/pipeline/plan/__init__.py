"""What a query reads, decided on the manifest's columns: objects, and their cut into tasks."""
