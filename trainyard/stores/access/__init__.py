"""Access to this home over a network: tokens, logins of browsers, the audit log."""
