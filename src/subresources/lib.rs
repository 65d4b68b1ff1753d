//! The aggregated API subresources.skyward.dev: logs and results, with Kubernetes RBAC.
