//! Instance types as the API describes them.

use serde_json::{Value, json};

use super::catalogue::{Device, InstanceType, Quota};

impl InstanceType {
    /// How the API describes it.
    pub fn describe(&self) -> Value {
        let mut classes = vec!["on-demand"];
        if self.spot {
            classes.push("spot");
        }
        if matches!(self.quota, Quota::P | Quota::Trn) {
            classes.push("capacity-block");
        }
        let burstable = self.name.starts_with('t') && !self.name.starts_with("trn");
        let mut record = json!({
            "InstanceType": self.name,
            "CurrentGeneration": !self.name.starts_with("p3."),
            "FreeTierEligible": self.name == "t3.micro",
            "SupportedUsageClasses": classes,
            "SupportedRootDeviceTypes": ["ebs"],
            "SupportedVirtualizationTypes": ["hvm"],
            "BareMetal": false,
            "Hypervisor": if self.name.starts_with("p3.") { "xen" } else { "nitro" },
            "ProcessorInfo": {"SupportedArchitectures": [self.architecture], "SustainedClockSpeedInGhz": 2.5},
            "VCpuInfo": {"DefaultVCpus": self.vcpus, "DefaultCores": self.vcpus.div_ceil(2), "DefaultThreadsPerCore": 2},
            "MemoryInfo": {"SizeInMiB": self.memory},
            "InstanceStorageSupported": self.storage > 0,
            "EbsInfo": {"EbsOptimizedSupport": "default", "EncryptionSupport": "supported", "NvmeSupport": "required"},
            "NetworkInfo": {"NetworkPerformance": self.network, "MaximumNetworkInterfaces": 4, "Ipv6Supported": true, "EnaSupport": "required", "EfaSupported": self.vcpus >= 96},
            "PlacementGroupInfo": {"SupportedStrategies": ["cluster", "partition", "spread"]},
            "HibernationSupported": false,
            "BurstablePerformanceSupported": burstable,
            "DedicatedHostsSupported": false,
            "AutoRecoverySupported": true,
            "SupportedBootModes": ["legacy-bios", "uefi"],
        });
        if self.storage > 0 {
            record["InstanceStorageInfo"] = json!({
                "TotalSizeInGB": self.storage,
                "Disks": [{"SizeInGB": self.storage, "Count": 1, "Type": "ssd"}],
                "NvmeSupport": "required",
                "EncryptionSupport": "required",
            });
        }
        match self.device {
            Device::None => {}
            Device::Gpus(maker, name, count, memory) => {
                record["GpuInfo"] = json!({
                    "Gpus": [{"Name": name, "Manufacturer": maker, "Count": count, "MemoryInfo": {"SizeInMiB": memory}}],
                    "TotalGpuMemoryInMiB": count * memory,
                });
            }
            Device::Fraction(eighths, memory, recent) => {
                let mut gpu =
                    json!({"Manufacturer": "NVIDIA", "Count": 0, "MemoryInfo": {"SizeInMiB": memory}});
                if recent {
                    gpu["Name"] = json!("L4");
                    gpu["LogicalGpuCount"] = json!(1);
                    gpu["GpuPartitionSize"] = json!(f64::from(eighths) / 8.0);
                }
                record["GpuInfo"] = json!({"Gpus": [gpu], "TotalGpuMemoryInMiB": memory});
            }
            Device::Neuron(name, count, memory, cores, version) => {
                record["NeuronInfo"] = json!({
                    "NeuronDevices": [{
                        "Name": name,
                        "Count": count,
                        "CoreInfo": {"Count": cores, "Version": version},
                        "MemoryInfo": {"SizeInMiB": memory},
                    }],
                    "TotalNeuronDeviceMemoryInMiB": count * memory,
                });
            }
            Device::Inference(count, memory) => {
                record["InferenceAcceleratorInfo"] = json!({
                    "Accelerators": [{
                        "Name": "Inferentia",
                        "Manufacturer": "AWS",
                        "Count": count,
                        "MemoryInfo": {"SizeInMiB": memory},
                    }],
                    "TotalInferenceMemoryInMiB": count * memory,
                });
            }
        }
        record
    }
}
