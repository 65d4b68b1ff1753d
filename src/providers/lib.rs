//! One folder per cloud; each implements the provider contract of skyward-core.
