"""An OpenAI-compatible server whose replies meet stated requirements; needs the extra ``serve``.

```python
from mellea_like.gateway import make_app, read_config

app = make_app(read_config("gateway.yaml"))  # For any ASGI server.
```
"""

from typing import TYPE_CHECKING

from mellea_like.runtime.later import imported_later

if TYPE_CHECKING:
    from mellea_like.gateway.app import make_app
    from mellea_like.gateway.config import ConfigError, GatewayConfig, read_config

__all__ = ["ConfigError", "GatewayConfig", "make_app", "read_config"]

__getattr__, __dir__ = imported_later(
    {
        "ConfigError": "mellea_like.gateway.config",
        "GatewayConfig": "mellea_like.gateway.config",
        "make_app": "mellea_like.gateway.app",
        "read_config": "mellea_like.gateway.config",
    },
    globals(),
)
