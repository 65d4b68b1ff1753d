"""Passes connections to one port on to another one of this machine: forward.py FROM TO."""

import asyncio
import sys

FROM, TO = int(sys.argv[1]), int(sys.argv[2])


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", TO)
    except OSError:
        # Nobody listens there yet: what a cloud's port mapping does, too.
        writer.close()
        return
    await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))
    inner_writer.close()
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "0.0.0.0", FROM)
    await server.serve_forever()


asyncio.run(main())
