//! Names of labels, annotations and finalizers; the only place that knows them.

/// Name of the Pool a Machine, Pod or Secret belongs to (its first 63 characters).
pub const POOL: &str = "skyward.dev/pool";
/// UID of that Pool: unlike the name it is never used twice.
pub const POOL_UID: &str = "skyward.dev/pool-uid";
/// Name of the Machine a Pod realises.
pub const MACHINE: &str = "skyward.dev/machine";
/// UID of that Machine.
pub const MACHINE_UID: &str = "skyward.dev/machine-uid";
/// Slot of a Machine in its Pool.
pub const SLOT: &str = "skyward.dev/slot";
/// Attempt to fill that slot.
pub const ATTEMPT: &str = "skyward.dev/attempt";
/// UID of the CronTask that made a Task.
pub const CRON_TASK_UID: &str = "skyward.dev/crontask-uid";
/// Annotation of a Task that a CronTask made: the time of the schedule that it was made for.
pub const SCHEDULED_FOR: &str = "skyward.dev/scheduled-for";
/// Provider that an Offer or Machine belongs to.
pub const PROVIDER: &str = "skyward.dev/provider";
/// The installation (UID of its kube-system namespace) that made an object.
pub const CLUSTER: &str = "skyward.dev/cluster";
/// On a Provider: what becomes of machines that a restored cluster does not remember, as
/// `Adopt@<digest>` or `End@<digest>`.
pub const AFTER_RESTORE: &str = "skyward.dev/after-restore";
/// On a Provider, as `true`: it may be deleted although it has machines. The chart's admission
/// policy reads it.
pub const ALLOW_DELETION: &str = "skyward.dev/allow-deletion";
/// Annotation of a Machine that drains because fewer are wanted: its runs may finish,
/// however long they take.
pub const FINISH_RUNS: &str = "skyward.dev/finish-runs";
/// The program that manages an object, Kubernetes' recommended label.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] and our server-side-apply field manager.
pub const MANAGER: &str = "skyward";

/// On Pools, Machines and Providers, until what they stand for is gone.
pub const FINALIZER: &str = "skyward.dev/cleanup";
