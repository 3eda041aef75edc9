"""`milkweed densify` turns a bundle's Monarch layers into dense layers that compute the same."""

from ..bundle_args import check_free
from ..options import Bundle, Force, Json, Out
from ..output import bundle_line, print_fields, print_json
from ..progress import progress


def densify(bundle: Bundle, out: Out, force: Force = False, json: Json = False) -> None:
    """Make every Monarch layer dense again (S2D).

    The new model computes the same, to rounding.

    \b
    Example:
      milkweed densify ./deit-monarch ./deit-dense
    """
    check_free(out, force)
    from ...models import bundle_to_dense

    with progress("densify", "layers") as update:
        report = bundle_to_dense(bundle, out, overwrite=force, progress=update)
    if json:
        print_json(
            {
                "bundle": str(out),
                "version": report.config.version,
                "bytes_on_disk": report.config.bytes_on_disk,
                "layers": list(report.layers),
                "parameters_before": report.parameters_before,
                "parameters_after": report.parameters_after,
                "seconds": round(report.seconds, 3),
            }
        )
        return
    print_fields(
        {
            "bundle": bundle_line(out, report.config),
            "layers": f"{len(report.layers)} made dense",
            "parameters": f"{report.parameters_before:,} -> {report.parameters_after:,}",
        }
    )
