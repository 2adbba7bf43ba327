"""Jobs of providers' batch APIs: a run whose rounds are submitted as a whole."""
