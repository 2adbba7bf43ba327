"""An OpenAI-compatible server whose replies meet stated requirements. Needs the extra ``serve``.

```python
from mellea_like.gateway import make_app, read_config

app = make_app(read_config("gateway.yaml"))  # For any ASGI server.
```
"""

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.gateway.config.config_file import ConfigError, read_config
    from mellea_like.gateway.config.gateway_config import GatewayConfig
    from mellea_like.gateway.http.app import make_app

__all__ = ["ConfigError", "GatewayConfig", "make_app", "read_config"]

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.gateway.config.config_file": "ConfigError read_config",
        "mellea_like.gateway.config.gateway_config": "GatewayConfig",
        "mellea_like.gateway.http.app": "make_app",
    },
)
