"""Where bytes come from: one module per source."""
