"""SQL text, read with importlib.resources: schema (migrations), views, evidence, screens, promql."""
