"""Repositories of models and data sets: content-addressed files, immutable commits, branches and tags, with quotas."""
