"""Who may do what: users, access keys, policies, and how nodes decide by them."""
