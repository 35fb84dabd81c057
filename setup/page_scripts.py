"""Writes the scripts that draw the plots of the report page, `observe/report/vega.js`: `python setup/page_scripts.py`.

vl-convert, a package for tests, has Vega, Vega-Lite and Vega-Embed with all that they need, and bundles them. It
weighs 84 MB, and the bundle one, so the repository has the bundle. Run it again after a new version of vl-convert;
a test compares the two.
"""

from pathlib import Path

import vl_convert

SCRIPTS = Path(__file__).resolve().parent.parent / "observe" / "report" / "vega.js"

LICENSE = """\
/*! Vega {vega}, Vega-Lite {lite} and Vega-Embed {embed}, with the modules that they need (of d3: ISC
license), as one bundle. Made by setup/page_scripts.py.

Copyright (c) 2015-2025, University of Washington Interactive Data Lab. All rights reserved.

Redistribution and use in source and binary forms, with or without modification, are permitted provided that
the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this list of conditions and the
following disclaimer.

2. Redistributions in binary form must reproduce the above copyright notice, this list of conditions and the
following disclaimer in the documentation and/or other materials provided with the distribution.

3. Neither the name of the copyright holder nor the names of its contributors may be used to endorse or
promote products derived from this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR IMPLIED
WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A
PARTICULAR PURPOSE ARE DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE FOR ANY
DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO,
PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER
CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR
OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH
DAMAGE.
*/
"""
"""The license of Vega and its parts, BSD-3-Clause, which a copy of them must have."""


def bundle() -> str:
    """Return the scripts, escaped for a `<script>` element."""
    scripts = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace(
        "</script", "<\\/script"
    )
    versions = {
        "vega": vl_convert.get_vega_version(),
        "lite": vl_convert.get_vegalite_versions()[-1],
        "embed": vl_convert.get_vega_embed_version(),
    }
    return LICENSE.format_map(versions) + scripts


if __name__ == "__main__":
    SCRIPTS.write_text(bundle(), encoding="utf-8")
