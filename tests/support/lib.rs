//! Helpers of the tests: builders, a handle on the cluster, waiting for conditions.
