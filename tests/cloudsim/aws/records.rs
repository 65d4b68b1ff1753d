//! Instance types as the API describes them.

use serde_json::{Value, json};

use super::catalogue::{Device, InstanceType, Quota};

impl InstanceType {
    /// How many network cards it has, and the performance of one of them.
    fn cards(&self) -> (u32, &'static str) {
        match self.name {
            "p5.48xlarge" => (32, "100 Gigabit"),
            "p6-b200.48xlarge" => (8, "400 Gigabit"),
            // Others say it in their words about the network.
            _ => self
                .network
                .split_once("x ")
                .and_then(|(count, each)| Some((count.parse().ok()?, each)))
                .unwrap_or((1, self.network)),
        }
    }

    fn network_info(&self) -> Value {
        let (cards, performance) = self.cards();
        // The interfaces for fabrics belong to those types that fill a host.
        let fast = self.vcpus >= 96 && self.quota != Quota::Inf;
        let each: Vec<Value> = (0..cards)
            .map(|index| {
                json!({
                    "NetworkCardIndex": index,
                    "NetworkPerformance": performance,
                    "MaximumNetworkInterfaces": 4,
                })
            })
            .collect();
        let mut info = json!({
            "NetworkPerformance": self.network,
            "MaximumNetworkInterfaces": 4,
            "MaximumNetworkCards": cards,
            "DefaultNetworkCardIndex": 0,
            "NetworkCards": each,
            "Ipv4AddressesPerInterface": 15,
            "Ipv6AddressesPerInterface": 15,
            "Ipv6Supported": true,
            "EnaSupport": "required",
            "EfaSupported": fast,
            "EncryptionInTransitSupported": fast,
        });
        if fast {
            info["EfaInfo"] = json!({"MaximumEfaInterfaces": cards});
        }
        info
    }

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
            "VCpuInfo": {"DefaultVCpus": self.vcpus, "DefaultCores": self.cores(), "DefaultThreadsPerCore": self.threads()},
            "MemoryInfo": {"SizeInMiB": self.memory},
            "InstanceStorageSupported": self.storage > 0,
            "EbsInfo": {"EbsOptimizedSupport": "default", "EncryptionSupport": "supported", "NvmeSupport": "required"},
            "NetworkInfo": self.network_info(),
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
