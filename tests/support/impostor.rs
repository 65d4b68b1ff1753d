//! An impostor: a program that a Task starts on its own machine, as root, and that takes the
//! place of the machine's agent.

/// Ends the agent and whatever would start it again, and listens where it listened. The text
/// `@ANSWER@` is replaced by what it does with the stream `number` of a `connection`.
const PROGRAM: &str = r"
import glob, os, signal, socket, struct, threading, time
def line(path):
    try:
        return open(path, 'rb').read().decode(errors='replace')
    except OSError:
        return ''
def frame(kind, flags, stream, payload):
    return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload
def header(name, value):
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value
for word in ('supervise', 'daemon'):
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        words = line(path).split('\0')
        if 'skyward-agent' in words[0] and word in words[1:2]:
            os.kill(int(path.split('/')[2]), signal.SIGKILL)
home = '/opt/skyward/agent.sock'
if os.path.exists(home):
    os.unlink(home)
server = socket.socket(socket.AF_UNIX)
server.bind(home)
server.listen()
print('lying', flush=True)
def serve(connection):
    stream = connection.makefile('rb')
    stream.read(24)
    connection.sendall(frame(4, 0, 0, b''))
    while True:
        head = stream.read(9)
        if len(head) < 9:
            return
        stream.read(int.from_bytes(head[:3], 'big'))
        if head[3] == 1:
            number = int.from_bytes(head[5:], 'big')
            @ANSWER@
def drip(connection, number, headers):
    try:
        connection.sendall(frame(1, 4, number, headers) + frame(0, 0, number, struct.pack('>BI', 0, 60000)))
        for _ in range(50000):
            connection.sendall(frame(0, 0, number, b'x'))
            time.sleep(0.05)
    except OSError:
        pass
def served(connection):
    try:
        serve(connection)
    except OSError:
        pass
while True:
    connection, _ = server.accept()
    threading.Thread(target=served, args=(connection,), daemon=True).start()
";

/// `:status: 200` and `content-type: application/grpc`, in HPACK.
const HEADERS: &str = r"b'\x88\x0f\x10\x10application/grpc'";

/// Python that answers every call with a message that is announced to be so large, and never
/// comes.
pub fn announces(bytes: u64) -> String {
    with(&format!(
        "connection.sendall(frame(1, 4, number, {HEADERS}) + frame(0, 0, number, struct.pack('>BI', 0, {bytes})))"
    ))
}

/// Python that refuses every call with that status of gRPC.
pub fn refuses(status: u32, message: &str) -> String {
    with(&format!(
        "connection.sendall(frame(1, 5, number, {HEADERS} + header(b'grpc-status', b'{status}') + header(b'grpc-message', b'{message}')))"
    ))
}

/// Python that answers every call with a message within the limits of the protocol, a byte at a
/// time, and never comes to its end.
pub fn drips() -> String {
    with(&format!(
        "threading.Thread(target=drip, args=(connection, number, {HEADERS}), daemon=True).start()"
    ))
}

fn with(answer: &str) -> String {
    PROGRAM.replace("@ANSWER@", answer)
}
