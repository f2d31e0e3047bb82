"""A user's own option files: Hydra finds `conf/GROUP/NAME.yaml` in the working folder, after those of the package."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from hcm_scale.options import own_conf_dir


class OwnOptions(SearchPathPlugin):
    """Adds the folder to where Hydra looks."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it begins to compose."""
        own = own_conf_dir()
        if own is not None:
            search_path.append("own", f"file://{own}")


def register() -> None:
    """Makes the folder known to Hydra."""
    Plugins.instance().register(OwnOptions)
