"""What audit records may contain, and the records of facts.

- `privacy`: which headers may be written, and which fields only as keyed hashes.
- `facts_record`: records of the headers and properties that rules test.
"""
