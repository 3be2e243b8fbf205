"""Shape annotations: checked where jaxtyping is installed (as in the tests), plain Tensor where it is not."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int64
else:
    try:
        from jaxtyping import Bool, Float, Int64
    except ImportError:

        class Shaped:
            """Shaped[Tensor, "B L"] is Tensor."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int64 = Shaped

__all__ = ["Bool", "Float", "Int64"]
