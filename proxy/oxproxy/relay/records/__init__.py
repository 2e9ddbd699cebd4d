"""What audit records may contain, and the records of facts.

- `audit_record`: the format of an audit record.
- `privacy`: which headers may be written, and which fields only as keyed hashes.
- `facts_record`: records of the headers and properties that rules test.
"""
