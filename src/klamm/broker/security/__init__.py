"""Who may connect and what they may do: authentication, authorization and quotas."""
