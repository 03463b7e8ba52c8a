"""taskloom.registry: what is installed (plugins, catalogue) and what was run (ledger, artifacts)."""
