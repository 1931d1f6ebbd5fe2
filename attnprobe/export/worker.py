"""The chart converter in a process of its own, so that its crash cannot take the server down.

Run as a script by `attnprobe.export.converter`, never imported: it needs nothing of attnprobe, and
importing the package would load torch. One JSON request a line on standard input; the answer is a
line "ok LENGTH" or "failed LENGTH" and so many bytes. It ends when its input does.
"""

import json
import sys

import vl_convert


def svg(request: dict) -> bytes:
    made = vl_convert.vegalite_to_svg(
        request["spec"], vl_version=request["vl_version"], allowed_base_urls=[]
    )
    return made.encode()


def pdf(request: dict) -> bytes:
    return vl_convert.svg_to_pdf(request["svg"])


def png(request: dict) -> bytes:
    return vl_convert.svg_to_png(request["svg"], scale=request["scale"])


ACTS = {"svg": svg, "pdf": pdf, "png": png}


def answer(line: bytes) -> tuple[bytes, bytes]:
    request = json.loads(line)
    try:
        return b"ok", ACTS[request["act"]](request)
    except (ValueError, RuntimeError) as error:
        # The rest is a stack of the converter's own.
        return b"failed", str(error).split("\n\n")[0].replace("\n", " ").encode()


def main(fonts: str) -> None:
    vl_convert.register_font_directory(fonts)
    for line in sys.stdin.buffer:
        state, body = answer(line)
        sys.stdout.buffer.write(b"%s %d\n" % (state, len(body)) + body)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
