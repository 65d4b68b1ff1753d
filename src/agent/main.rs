//! The agent of a machine; see `daemon`.

fn main() -> std::process::ExitCode {
    skyward_agent::daemon::main()
}
