"""Generator of docs/explanation/evidence.md: `page.in.md` is the text, `__main__` fills in the tables."""
