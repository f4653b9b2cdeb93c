"""Who may use this home over a network, and what they changed: tokens, logins of browsers, the audit log."""
