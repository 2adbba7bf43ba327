"""Ready-made checks (`mellea_like.requirements.checks`), the judge, and running all checks."""
