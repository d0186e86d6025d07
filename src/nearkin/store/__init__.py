"""Storage of a zoo: records, schema, migrations, SQLite, blobs, bundles, integrity checks. Imports only `core`."""
