"""APIs of authentication, ACLs and quotas."""
