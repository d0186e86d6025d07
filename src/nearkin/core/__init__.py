"""The ground floor: errors, seeded generators, events, durable files. Imports nothing else of the house."""
