//! Kinds of machines at RunPod, as the text that Offers and orders carry. Pure.

use std::fmt;

/// A kind of machine; its text is the offer's instance type, such as
/// `2x NVIDIA GeForce RTX 4090/secure` or `cpu3c/4vcpu`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// With GPUs.
    Gpu {
        /// Id of the GPU in the catalogue.
        id: String,
        /// How many.
        count: u32,
        /// Where.
        cloud: Cloud,
    },
    /// Without.
    Cpu {
        /// Id of the flavour in the catalogue.
        flavour: String,
        /// How many.
        vcpus: u32,
    },
}

/// Where a machine is, and whether others reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cloud {
    /// RunPod's own data centers.
    Secure,
    /// The same, with an address in the global network.
    Networked,
    /// Data centers of partners.
    Community,
}

impl Cloud {
    /// As RunPod writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Secure | Self::Networked => "SECURE",
            Self::Community => "COMMUNITY",
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::Secure => "secure",
            Self::Networked => "secure-networked",
            Self::Community => "community",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu { id, count, cloud } => write!(f, "{count}x {id}/{}", cloud.suffix()),
            Self::Cpu { flavour, vcpus } => write!(f, "{flavour}/{vcpus}vcpu"),
        }
    }
}

impl Kind {
    /// A kind from its text.
    pub fn parse(text: &str) -> Option<Self> {
        let (what, place) = text.rsplit_once('/')?;
        if let Some(vcpus) = place.strip_suffix("vcpu") {
            return Some(Self::Cpu {
                flavour: what.to_owned(),
                vcpus: vcpus.parse().ok()?,
            });
        }
        let cloud = [Cloud::Secure, Cloud::Networked, Cloud::Community]
            .into_iter()
            .find(|cloud| cloud.suffix() == place)?;
        let (count, id) = what.split_once("x ")?;
        Some(Self::Gpu {
            id: id.to_owned(),
            count: count.parse().ok()?,
            cloud,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_comes_back_from_its_text() {
        let gpu = |cloud| Kind::Gpu {
            id: "NVIDIA GeForce RTX 4090".into(),
            count: 2,
            cloud,
        };
        let cpu = Kind::Cpu {
            flavour: "cpu3c".into(),
            vcpus: 4,
        };
        for kind in [
            gpu(Cloud::Secure),
            gpu(Cloud::Networked),
            gpu(Cloud::Community),
            cpu,
        ] {
            assert_eq!(Kind::parse(&kind.to_string()), Some(kind));
        }
        assert_eq!(
            gpu(Cloud::Secure).to_string(),
            "2x NVIDIA GeForce RTX 4090/secure"
        );
        assert_eq!(Kind::parse("H100"), None);
        assert_eq!(Kind::parse("x/secure"), None);
    }
}
