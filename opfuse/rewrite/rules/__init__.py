"""The rewrite rules, a file a family."""
