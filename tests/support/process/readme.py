"""What tests of readme share with others."""

DOCUMENTS = ("README.md", "docs/CLI.md", "docs/OPERATIONS.md")
