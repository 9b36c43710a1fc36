"""Relevance sent backwards: rules, the composites that place them, and what they conserve."""
