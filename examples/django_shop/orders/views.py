"""The shop's pages."""

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from orders.services import place_order


@csrf_exempt
@require_POST
def orders(request: HttpRequest) -> JsonResponse:
    """Take an order."""
    try:
        order, job = place_order(request.POST["customer"], int(request.POST["cents"]))
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=402)
    return JsonResponse({"order": order.pk, "job": job.id}, status=201)
