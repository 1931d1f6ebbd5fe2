"""Streamlit does not look for this machine's outer address.

When a page of another site knocks, Streamlit compares its origin with the addresses of this machine
and asks a service on the internet for the outer one. The server listens on localhost, where no such
origin is right, so both look-ups are answered here with "none" and nothing leaves the machine.
"""

from streamlit import net_util


def stay_offline() -> None:
    """From now on this server has no address but localhost."""
    net_util.get_internal_ip = net_util.get_external_ip = _none


def _none() -> None:
    return None
